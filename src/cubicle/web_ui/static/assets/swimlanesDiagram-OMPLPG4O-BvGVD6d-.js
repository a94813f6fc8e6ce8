import{r as e,t}from"./chunk-QB3YPZ4I-m0vxTY1P.js";import"./chunk-TU62E6Q5-236VqFOu.js";import"./mermaid.core-B13Wz8LV.js";import"./chunk-HFQBQIA3-CJ8U1sq7.js";import"./chunk-M57EVK23-DwDjSQ6j.js";import"./chunk-DQASFODM-DSi0Z87n.js";import"./chunk-LEVMRMFU-B9gKvnc9.js";import"./chunk-AXFCVDMN-DdA_bq0-.js";import"./chunk-X4PVCEUW-lKw0IsbE.js";import"./chunk-STOXU5M4-B4g-n4Kt.js";import"./chunk-R3KSYZAL-BfMmmOWk.js";import"./chunk-6MUBBAK2-BPRqxVhl.js";import"./chunk-BG4553SI-D15EAY3C.js";import"./d3-selection-COWvaQNI.js";import{n}from"./chunk-Y2CYZVJY-DsF7k-Jl.js";var r=t({styles:n(t=>`${e(t)}
  .swimlane.cluster:not([data-color-id]) rect {
    stroke: ${t.clusterBorder} !important;
  }
  [data-look="neo"].cluster rect {
    filter: none;
  }
`,`getStyles`)});export{r as diagram};