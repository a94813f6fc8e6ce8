import{r as e,t}from"./chunk-QB3YPZ4I-CG5ONtdK.js";import"./chunk-TU62E6Q5-C1QaDH4_.js";import"./mermaid.core-Bc7LjlzD.js";import"./chunk-HFQBQIA3-CjnMYrB-.js";import"./chunk-M57EVK23-DmAQBilU.js";import"./chunk-DQASFODM-DfiisEEk.js";import"./chunk-LEVMRMFU-D-o5oWmf.js";import"./chunk-AXFCVDMN-SJ2bh7Sr.js";import"./chunk-X4PVCEUW-SHEeVy_U.js";import"./chunk-STOXU5M4-DMWTHTrs.js";import"./chunk-R3KSYZAL-CDjA2U_O.js";import"./chunk-6MUBBAK2-CNH7ihOt.js";import"./chunk-BG4553SI-C0F5lGZn.js";import"./d3-selection-COWvaQNI.js";import{n}from"./chunk-Y2CYZVJY-DsF7k-Jl.js";var r=t({styles:n(t=>`${e(t)}
  .swimlane.cluster:not([data-color-id]) rect {
    stroke: ${t.clusterBorder} !important;
  }
  [data-look="neo"].cluster rect {
    filter: none;
  }
`,`getStyles`)});export{r as diagram};