import{r as e,t}from"./chunk-QB3YPZ4I-CGaoBv7Q.js";import"./chunk-TU62E6Q5-DFBWUQUI.js";import"./mermaid.core-sNCTzcG2.js";import"./chunk-HFQBQIA3-C7Dcg26M.js";import"./chunk-M57EVK23-vhjuU_P9.js";import"./chunk-DQASFODM-CswLLODh.js";import"./chunk-LEVMRMFU-D21-E-pN.js";import"./chunk-AXFCVDMN-6c00ymZm.js";import"./chunk-X4PVCEUW-BySTJJl7.js";import"./chunk-STOXU5M4-CpO3Co1K.js";import"./chunk-R3KSYZAL-2dmPw3RP.js";import"./chunk-6MUBBAK2-DuAWdJr_.js";import"./chunk-BG4553SI-BpW-mZ6G.js";import"./d3-selection-COWvaQNI.js";import{n}from"./chunk-Y2CYZVJY-DsF7k-Jl.js";var r=t({styles:n(t=>`${e(t)}
  .swimlane.cluster:not([data-color-id]) rect {
    stroke: ${t.clusterBorder} !important;
  }
  [data-look="neo"].cluster rect {
    filter: none;
  }
`,`getStyles`)});export{r as diagram};