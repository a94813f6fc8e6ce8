import{r as e,t}from"./chunk-QB3YPZ4I-DxrtLlSQ.js";import"./chunk-TU62E6Q5-BDeagd_E.js";import"./mermaid.core-D0whZoR3.js";import"./chunk-HFQBQIA3-B2ZnDzlR.js";import"./chunk-M57EVK23-DDNH3Gw3.js";import"./chunk-DQASFODM-D_1yxn-u.js";import"./chunk-LEVMRMFU-BytDm3Cu.js";import"./chunk-AXFCVDMN-DxW83dn7.js";import"./chunk-X4PVCEUW-B3TjchWW.js";import"./chunk-STOXU5M4-DGZfQT7W.js";import"./chunk-R3KSYZAL-DpNSqhSa.js";import"./chunk-6MUBBAK2-CFS_sYE7.js";import"./chunk-BG4553SI-oYAcZM37.js";import"./d3-selection-COWvaQNI.js";import{n}from"./chunk-Y2CYZVJY-DsF7k-Jl.js";var r=t({styles:n(t=>`${e(t)}
  .swimlane.cluster:not([data-color-id]) rect {
    stroke: ${t.clusterBorder} !important;
  }
  [data-look="neo"].cluster rect {
    filter: none;
  }
`,`getStyles`)});export{r as diagram};