import{r as e,t}from"./chunk-QB3YPZ4I-CQfe8ePu.js";import"./chunk-TU62E6Q5-DxRQq07y.js";import"./mermaid.core-B7lnseab.js";import"./chunk-HFQBQIA3-Byhgd5uD.js";import"./chunk-M57EVK23-DCAbYNS7.js";import"./chunk-DQASFODM-BREe1pOo.js";import"./chunk-LEVMRMFU-BfnraEAN.js";import"./chunk-AXFCVDMN-C7-VHCIn.js";import"./chunk-X4PVCEUW-BwJTvXge.js";import"./chunk-STOXU5M4-CmEpLAm3.js";import"./chunk-R3KSYZAL-DDhTHSXa.js";import"./chunk-6MUBBAK2-CMahusJ9.js";import"./chunk-BG4553SI-DFP0bXLu.js";import"./d3-selection-COWvaQNI.js";import{n}from"./chunk-Y2CYZVJY-DsF7k-Jl.js";var r=t({styles:n(t=>`${e(t)}
  .swimlane.cluster:not([data-color-id]) rect {
    stroke: ${t.clusterBorder} !important;
  }
  [data-look="neo"].cluster rect {
    filter: none;
  }
`,`getStyles`)});export{r as diagram};