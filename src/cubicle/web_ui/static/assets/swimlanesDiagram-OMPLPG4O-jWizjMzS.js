import{r as e,t}from"./chunk-QB3YPZ4I-BeKxw4vV.js";import"./chunk-TU62E6Q5-VkeavBFY.js";import"./mermaid.core-BfXI4EPn.js";import"./chunk-HFQBQIA3-Du_jZz_I.js";import"./chunk-M57EVK23-Bsm-oEhv.js";import"./chunk-DQASFODM-DfQqiNK7.js";import"./chunk-LEVMRMFU-D5ojoAaR.js";import"./chunk-AXFCVDMN-DGMfoBor.js";import"./chunk-X4PVCEUW-DIrvhuDD.js";import"./chunk-STOXU5M4-CzSucDK9.js";import"./chunk-R3KSYZAL-5s9qBtiu.js";import"./chunk-6MUBBAK2-DesFQWRz.js";import"./chunk-BG4553SI-Cmpjg0Gg.js";import"./d3-selection-COWvaQNI.js";import{n}from"./chunk-Y2CYZVJY-DsF7k-Jl.js";var r=t({styles:n(t=>`${e(t)}
  .swimlane.cluster:not([data-color-id]) rect {
    stroke: ${t.clusterBorder} !important;
  }
  [data-look="neo"].cluster rect {
    filter: none;
  }
`,`getStyles`)});export{r as diagram};