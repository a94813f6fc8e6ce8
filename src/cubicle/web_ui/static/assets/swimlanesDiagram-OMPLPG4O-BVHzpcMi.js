import{r as e,t}from"./chunk-QB3YPZ4I-CfQ3Raos.js";import"./chunk-TU62E6Q5-BDnJPyEu.js";import"./mermaid.core-DDynPdFL.js";import"./chunk-HFQBQIA3-DtO97WGc.js";import"./chunk-M57EVK23-CQSe17uz.js";import"./chunk-DQASFODM-BROovin9.js";import"./chunk-LEVMRMFU-B4eWGds8.js";import"./chunk-AXFCVDMN-Bz14jq41.js";import"./chunk-X4PVCEUW-BuC5U1h6.js";import"./chunk-STOXU5M4-FMYXU7kT.js";import"./chunk-R3KSYZAL-Bzz4Bs8P.js";import"./chunk-6MUBBAK2-DqgYDGCP.js";import"./chunk-BG4553SI-HoF_-dAa.js";import"./d3-selection-COWvaQNI.js";import{n}from"./chunk-Y2CYZVJY-DsF7k-Jl.js";var r=t({styles:n(t=>`${e(t)}
  .swimlane.cluster:not([data-color-id]) rect {
    stroke: ${t.clusterBorder} !important;
  }
  [data-look="neo"].cluster rect {
    filter: none;
  }
`,`getStyles`)});export{r as diagram};