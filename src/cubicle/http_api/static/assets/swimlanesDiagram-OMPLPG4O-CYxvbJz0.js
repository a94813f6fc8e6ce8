import{r as e,t}from"./chunk-QB3YPZ4I-BH2kaTtM.js";import"./chunk-TU62E6Q5-vNwqk1Al.js";import"./mermaid.core-BYVE0EyQ.js";import"./chunk-HFQBQIA3-BTryhRxu.js";import"./chunk-M57EVK23-8xFhLPG4.js";import"./chunk-DQASFODM-yiZpaLKn.js";import"./chunk-LEVMRMFU-Cq7f3s0z.js";import"./chunk-AXFCVDMN-CEQovZD3.js";import"./chunk-X4PVCEUW-qPVGgEUR.js";import"./chunk-STOXU5M4-Biq9wWl4.js";import"./chunk-R3KSYZAL-x6L520Kk.js";import"./chunk-6MUBBAK2-DhifP6zW.js";import"./chunk-BG4553SI-DnD9mPLz.js";import"./d3-selection-COWvaQNI.js";import{n}from"./chunk-Y2CYZVJY-DsF7k-Jl.js";var r=t({styles:n(t=>`${e(t)}
  .swimlane.cluster:not([data-color-id]) rect {
    stroke: ${t.clusterBorder} !important;
  }
  [data-look="neo"].cluster rect {
    filter: none;
  }
`,`getStyles`)});export{r as diagram};