import{r as e,t}from"./chunk-QB3YPZ4I-B43n9Urv.js";import"./chunk-TU62E6Q5-BMwKzWKO.js";import"./mermaid.core-2NRcPjWp.js";import"./chunk-HFQBQIA3-2FaWKKZo.js";import"./chunk-M57EVK23-CAjIBtUQ.js";import"./chunk-DQASFODM-CkEVWJ3B.js";import"./chunk-LEVMRMFU-ZBihVR0F.js";import"./chunk-AXFCVDMN-D43xlyFP.js";import"./chunk-X4PVCEUW-C18UCIZ3.js";import"./chunk-STOXU5M4-6RxxPtn8.js";import"./chunk-R3KSYZAL-CBX4TmdN.js";import"./chunk-6MUBBAK2-CJlT-N4r.js";import"./chunk-BG4553SI-CqCSnov-.js";import"./d3-selection-COWvaQNI.js";import{n}from"./chunk-Y2CYZVJY-DsF7k-Jl.js";var r=t({styles:n(t=>`${e(t)}
  .swimlane.cluster:not([data-color-id]) rect {
    stroke: ${t.clusterBorder} !important;
  }
  [data-look="neo"].cluster rect {
    filter: none;
  }
`,`getStyles`)});export{r as diagram};