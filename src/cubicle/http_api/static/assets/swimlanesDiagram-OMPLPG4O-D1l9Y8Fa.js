import{r as e,t}from"./chunk-QB3YPZ4I-CQl9tLLu.js";import"./chunk-TU62E6Q5-CRAKjV-Z.js";import"./mermaid.core-DwSe2_Bz.js";import"./chunk-HFQBQIA3-DWCA-IMW.js";import"./chunk-M57EVK23-DJLOoQyl.js";import"./chunk-DQASFODM-BAtX9vgi.js";import"./chunk-LEVMRMFU-vOElfLAH.js";import"./chunk-AXFCVDMN-D5Hlt_-u.js";import"./chunk-X4PVCEUW-D9pj46AD.js";import"./chunk-STOXU5M4-D7MBJJMB.js";import"./chunk-R3KSYZAL-Bgqk98TD.js";import"./chunk-6MUBBAK2-vYl2eYMr.js";import"./chunk-BG4553SI-B3q3OoVj.js";import"./d3-selection-COWvaQNI.js";import{n}from"./chunk-Y2CYZVJY-DsF7k-Jl.js";var r=t({styles:n(t=>`${e(t)}
  .swimlane.cluster:not([data-color-id]) rect {
    stroke: ${t.clusterBorder} !important;
  }
  [data-look="neo"].cluster rect {
    filter: none;
  }
`,`getStyles`)});export{r as diagram};