import{r as e,t}from"./chunk-QB3YPZ4I-DR7UgvsD.js";import"./chunk-TU62E6Q5-JDtSTw_U.js";import"./mermaid.core-DfyJTBtk.js";import"./chunk-HFQBQIA3-Bco3e5AX.js";import"./chunk-M57EVK23-BKEOhRGE.js";import"./chunk-DQASFODM-BO2PQVjl.js";import"./chunk-LEVMRMFU-kRxRJ6gO.js";import"./chunk-AXFCVDMN-DD-9m26L.js";import"./chunk-X4PVCEUW-B-FnUrrs.js";import"./chunk-STOXU5M4-DW2crtIk.js";import"./chunk-R3KSYZAL-C9g_3Z7z.js";import"./chunk-6MUBBAK2-CINXa_oA.js";import"./chunk-BG4553SI-CylpSfdR.js";import"./d3-selection-COWvaQNI.js";import{n}from"./chunk-Y2CYZVJY-DsF7k-Jl.js";var r=t({styles:n(t=>`${e(t)}
  .swimlane.cluster:not([data-color-id]) rect {
    stroke: ${t.clusterBorder} !important;
  }
  [data-look="neo"].cluster rect {
    filter: none;
  }
`,`getStyles`)});export{r as diagram};