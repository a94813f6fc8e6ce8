import{r as e,t}from"./chunk-QB3YPZ4I-BlPvBZdj.js";import"./chunk-TU62E6Q5-CX9bQtiQ.js";import"./mermaid.core-DSCY2C_r.js";import"./chunk-HFQBQIA3-QElYjd40.js";import"./chunk-M57EVK23-CPhohEI3.js";import"./chunk-DQASFODM-BFb4DjZw.js";import"./chunk-LEVMRMFU-Ce09Zp-W.js";import"./chunk-AXFCVDMN-CIcw-B4B.js";import"./chunk-X4PVCEUW-D8MYJC_L.js";import"./chunk-STOXU5M4-Dr8DzspP.js";import"./chunk-R3KSYZAL-gG3TBnR1.js";import"./chunk-6MUBBAK2-CgXippj2.js";import"./chunk-BG4553SI-nlJ_ns_e.js";import"./d3-selection-COWvaQNI.js";import{n}from"./chunk-Y2CYZVJY-DsF7k-Jl.js";var r=t({styles:n(t=>`${e(t)}
  .swimlane.cluster:not([data-color-id]) rect {
    stroke: ${t.clusterBorder} !important;
  }
  [data-look="neo"].cluster rect {
    filter: none;
  }
`,`getStyles`)});export{r as diagram};