import{r as e,t}from"./chunk-QB3YPZ4I-DaExjPO_.js";import"./chunk-TU62E6Q5-C2KRRWem.js";import"./mermaid.core-C1lm49Wq.js";import"./chunk-HFQBQIA3-CGcHWJ-f.js";import"./chunk-M57EVK23-cDMYG5hy.js";import"./chunk-DQASFODM-BYq5RWAT.js";import"./chunk-LEVMRMFU-67iigoyi.js";import"./chunk-AXFCVDMN-DGt2qgYf.js";import"./chunk-X4PVCEUW-DAF9xlIz.js";import"./chunk-STOXU5M4-DKla6PfW.js";import"./chunk-R3KSYZAL-BTgyZF9f.js";import"./chunk-6MUBBAK2-C6lR49gM.js";import"./chunk-BG4553SI-BMh-dnL-.js";import"./d3-selection-COWvaQNI.js";import{n}from"./chunk-Y2CYZVJY-DsF7k-Jl.js";var r=t({styles:n(t=>`${e(t)}
  .swimlane.cluster:not([data-color-id]) rect {
    stroke: ${t.clusterBorder} !important;
  }
  [data-look="neo"].cluster rect {
    filter: none;
  }
`,`getStyles`)});export{r as diagram};