import{r as e,t}from"./chunk-QB3YPZ4I-pmjHmUxN.js";import"./chunk-TU62E6Q5-BGdlvRVf.js";import"./mermaid.core-DDUqbDIs.js";import"./chunk-HFQBQIA3-BQx-KI32.js";import"./chunk-M57EVK23-wSGBaCkx.js";import"./chunk-DQASFODM-DoW969aX.js";import"./chunk-LEVMRMFU-DW68wVlJ.js";import"./chunk-AXFCVDMN-DK2I4bM5.js";import"./chunk-X4PVCEUW-Cd_sSuYe.js";import"./chunk-STOXU5M4-DQe8HJBj.js";import"./chunk-R3KSYZAL-CaySDFns.js";import"./chunk-6MUBBAK2-0Rap-V6J.js";import"./chunk-BG4553SI-fgBF9qhM.js";import"./d3-selection-COWvaQNI.js";import{n}from"./chunk-Y2CYZVJY-DsF7k-Jl.js";var r=t({styles:n(t=>`${e(t)}
  .swimlane.cluster:not([data-color-id]) rect {
    stroke: ${t.clusterBorder} !important;
  }
  [data-look="neo"].cluster rect {
    filter: none;
  }
`,`getStyles`)});export{r as diagram};