import{r as e,t}from"./chunk-QB3YPZ4I-Bo7B6LlU.js";import"./chunk-TU62E6Q5-Cd0eSivS.js";import"./mermaid.core-hfN8Dxf2.js";import"./chunk-HFQBQIA3-BPkYr6m9.js";import"./chunk-M57EVK23-0rR9FuP1.js";import"./chunk-DQASFODM-nqM9DQU4.js";import"./chunk-LEVMRMFU-BIDB-MTA.js";import"./chunk-AXFCVDMN-DMXyRSrg.js";import"./chunk-X4PVCEUW-Cc0jeRL8.js";import"./chunk-STOXU5M4-C4ZtTrDp.js";import"./chunk-R3KSYZAL-DM_EBMyk.js";import"./chunk-6MUBBAK2-CbbQNLAP.js";import"./chunk-BG4553SI-bEK26jl-.js";import"./d3-selection-COWvaQNI.js";import{n}from"./chunk-Y2CYZVJY-DsF7k-Jl.js";var r=t({styles:n(t=>`${e(t)}
  .swimlane.cluster:not([data-color-id]) rect {
    stroke: ${t.clusterBorder} !important;
  }
  [data-look="neo"].cluster rect {
    filter: none;
  }
`,`getStyles`)});export{r as diagram};