import{r as e,t}from"./chunk-QB3YPZ4I-BpJcVO9A.js";import"./chunk-TU62E6Q5-CTOllfG5.js";import"./mermaid.core-vyO5ilk3.js";import"./chunk-HFQBQIA3-ptk434Tm.js";import"./chunk-M57EVK23-Ctm4RkfL.js";import"./chunk-DQASFODM-DMqErH0V.js";import"./chunk-LEVMRMFU-OG-KLVml.js";import"./chunk-AXFCVDMN-DSxTbcr1.js";import"./chunk-X4PVCEUW-XkaPY0sm.js";import"./chunk-STOXU5M4-ChMTROpk.js";import"./chunk-R3KSYZAL-ByMxigat.js";import"./chunk-6MUBBAK2-DUz-2YB-.js";import"./chunk-BG4553SI-n2tvi-Tn.js";import"./d3-selection-COWvaQNI.js";import{n}from"./chunk-Y2CYZVJY-DsF7k-Jl.js";var r=t({styles:n(t=>`${e(t)}
  .swimlane.cluster:not([data-color-id]) rect {
    stroke: ${t.clusterBorder} !important;
  }
  [data-look="neo"].cluster rect {
    filter: none;
  }
`,`getStyles`)});export{r as diagram};