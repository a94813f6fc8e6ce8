import{r as e,t}from"./chunk-QB3YPZ4I-CdRGyz83.js";import"./chunk-TU62E6Q5-C64g0yIO.js";import"./mermaid.core-Cem3ZK7v.js";import"./chunk-HFQBQIA3-Cy0avmZ_.js";import"./chunk-M57EVK23-B9goE_vD.js";import"./chunk-DQASFODM-CH1pd82E.js";import"./chunk-LEVMRMFU-H2kOQC1T.js";import"./chunk-AXFCVDMN-DUswD-cH.js";import"./chunk-X4PVCEUW-CMM4M-xT.js";import"./chunk-STOXU5M4-feVsfEXp.js";import"./chunk-R3KSYZAL-BH7Uob22.js";import"./chunk-6MUBBAK2-D0uGqXE0.js";import"./chunk-BG4553SI-B8IElFhw.js";import"./d3-selection-COWvaQNI.js";import{n}from"./chunk-Y2CYZVJY-DsF7k-Jl.js";var r=t({styles:n(t=>`${e(t)}
  .swimlane.cluster:not([data-color-id]) rect {
    stroke: ${t.clusterBorder} !important;
  }
  [data-look="neo"].cluster rect {
    filter: none;
  }
`,`getStyles`)});export{r as diagram};