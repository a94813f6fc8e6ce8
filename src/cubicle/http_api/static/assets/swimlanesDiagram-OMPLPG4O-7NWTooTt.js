import{r as e,t}from"./chunk-QB3YPZ4I-Crm2PQQG.js";import"./chunk-TU62E6Q5-CIm48-hs.js";import"./mermaid.core-BWG5YLHE.js";import"./chunk-HFQBQIA3-CZZMfALb.js";import"./chunk-M57EVK23-3Pxj5koJ.js";import"./chunk-DQASFODM-Bft3JcUI.js";import"./chunk-LEVMRMFU-CJjmGlP_.js";import"./chunk-AXFCVDMN-DfO0eBeW.js";import"./chunk-X4PVCEUW-BilpUeSN.js";import"./chunk-STOXU5M4-DcEAHbKS.js";import"./chunk-R3KSYZAL-DoiK5yAj.js";import"./chunk-6MUBBAK2-BGxY4unH.js";import"./chunk-BG4553SI-D5SxyXwk.js";import"./d3-selection-COWvaQNI.js";import{n}from"./chunk-Y2CYZVJY-DsF7k-Jl.js";var r=t({styles:n(t=>`${e(t)}
  .swimlane.cluster:not([data-color-id]) rect {
    stroke: ${t.clusterBorder} !important;
  }
  [data-look="neo"].cluster rect {
    filter: none;
  }
`,`getStyles`)});export{r as diagram};