import{r as e,t}from"./chunk-QB3YPZ4I-Dym-PPIu.js";import"./chunk-TU62E6Q5-B7Ryw5Im.js";import"./mermaid.core-3MpDQCyo.js";import"./chunk-HFQBQIA3-bJ4J907N.js";import"./chunk-M57EVK23-TyMWgvoM.js";import"./chunk-DQASFODM-1pdVCbuX.js";import"./chunk-LEVMRMFU-CFH-YYZ1.js";import"./chunk-AXFCVDMN-Drde2Gr9.js";import"./chunk-X4PVCEUW-ClbYGnFl.js";import"./chunk-STOXU5M4-uUlL3xHV.js";import"./chunk-R3KSYZAL-DLlIOiIl.js";import"./chunk-6MUBBAK2-DLGbdkkA.js";import"./chunk-BG4553SI-DAGnvZTh.js";import"./d3-selection-COWvaQNI.js";import{n}from"./chunk-Y2CYZVJY-DsF7k-Jl.js";var r=t({styles:n(t=>`${e(t)}
  .swimlane.cluster:not([data-color-id]) rect {
    stroke: ${t.clusterBorder} !important;
  }
  [data-look="neo"].cluster rect {
    filter: none;
  }
`,`getStyles`)});export{r as diagram};