import{r as e,t}from"./chunk-QB3YPZ4I-DUWebT9A.js";import"./chunk-TU62E6Q5-Dyg21RjK.js";import"./mermaid.core-Cy7pLGcE.js";import"./chunk-HFQBQIA3-BO5-S9xU.js";import"./chunk-M57EVK23-BsaxHxuJ.js";import"./chunk-DQASFODM-CD4wzcdi.js";import"./chunk-LEVMRMFU-BVjqQhyc.js";import"./chunk-AXFCVDMN-Havlg60Q.js";import"./chunk-X4PVCEUW-BZ3UZ9pB.js";import"./chunk-STOXU5M4-DnpVGOoM.js";import"./chunk-R3KSYZAL-CzZRsKKY.js";import"./chunk-6MUBBAK2-Bn1hmU8_.js";import"./chunk-BG4553SI-D-j9Kasy.js";import"./d3-selection-COWvaQNI.js";import{n}from"./chunk-Y2CYZVJY-DsF7k-Jl.js";var r=t({styles:n(t=>`${e(t)}
  .swimlane.cluster:not([data-color-id]) rect {
    stroke: ${t.clusterBorder} !important;
  }
  [data-look="neo"].cluster rect {
    filter: none;
  }
`,`getStyles`)});export{r as diagram};