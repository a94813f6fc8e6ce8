import{r as e,t}from"./chunk-QB3YPZ4I-6QSZRyyi.js";import"./chunk-TU62E6Q5-CLaOxhdW.js";import"./mermaid.core-B9irskcM.js";import"./chunk-HFQBQIA3-BOiubiDq.js";import"./chunk-M57EVK23-SZWb4fz6.js";import"./chunk-DQASFODM-CZWnrFE9.js";import"./chunk-LEVMRMFU-DOAhhPCJ.js";import"./chunk-AXFCVDMN-BPXOY3ca.js";import"./chunk-X4PVCEUW-ggyE7vHn.js";import"./chunk-STOXU5M4-BPtmUaS_.js";import"./chunk-R3KSYZAL-Di3gYxOo.js";import"./chunk-6MUBBAK2-CIqno_xW.js";import"./chunk-BG4553SI-De7S_pBr.js";import"./d3-selection-COWvaQNI.js";import{n}from"./chunk-Y2CYZVJY-DsF7k-Jl.js";var r=t({styles:n(t=>`${e(t)}
  .swimlane.cluster:not([data-color-id]) rect {
    stroke: ${t.clusterBorder} !important;
  }
  [data-look="neo"].cluster rect {
    filter: none;
  }
`,`getStyles`)});export{r as diagram};