import{r as e,t}from"./chunk-QB3YPZ4I-jZPARz2U.js";import"./chunk-TU62E6Q5-DvYDdNrM.js";import"./mermaid.core-idAgUc4A.js";import"./chunk-HFQBQIA3-DKL41XI7.js";import"./chunk-M57EVK23-B8aJTkR_.js";import"./chunk-DQASFODM-BC8OuVyM.js";import"./chunk-LEVMRMFU-DOlnZoP2.js";import"./chunk-AXFCVDMN-CWR8HBCl.js";import"./chunk-X4PVCEUW-CtC5h_Ie.js";import"./chunk-STOXU5M4-BSBXoT_d.js";import"./chunk-R3KSYZAL-BnVkrif2.js";import"./chunk-6MUBBAK2-APo37ZlS.js";import"./chunk-BG4553SI-qBO9FmJy.js";import"./d3-selection-COWvaQNI.js";import{n}from"./chunk-Y2CYZVJY-DsF7k-Jl.js";var r=t({styles:n(t=>`${e(t)}
  .swimlane.cluster:not([data-color-id]) rect {
    stroke: ${t.clusterBorder} !important;
  }
  [data-look="neo"].cluster rect {
    filter: none;
  }
`,`getStyles`)});export{r as diagram};