import{r as e,t}from"./chunk-QB3YPZ4I-OsPkOsVH.js";import"./chunk-TU62E6Q5-DXpzFEpD.js";import"./mermaid.core-Ze-Z1afs.js";import"./chunk-HFQBQIA3-BVwPFmDw.js";import"./chunk-M57EVK23-DLf96osO.js";import"./chunk-DQASFODM-D3G0vNVR.js";import"./chunk-LEVMRMFU-DZkHjQRO.js";import"./chunk-AXFCVDMN-BLs-YbqJ.js";import"./chunk-X4PVCEUW-Dw6G6D8f.js";import"./chunk-STOXU5M4-DtbH2U5K.js";import"./chunk-R3KSYZAL-BMweyK4E.js";import"./chunk-6MUBBAK2-sF8h6N-A.js";import"./chunk-BG4553SI-2vwA75to.js";import"./d3-selection-COWvaQNI.js";import{n}from"./chunk-Y2CYZVJY-DsF7k-Jl.js";var r=t({styles:n(t=>`${e(t)}
  .swimlane.cluster:not([data-color-id]) rect {
    stroke: ${t.clusterBorder} !important;
  }
  [data-look="neo"].cluster rect {
    filter: none;
  }
`,`getStyles`)});export{r as diagram};