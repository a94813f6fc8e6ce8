import{r as e,t}from"./chunk-QB3YPZ4I-En6v0f3k.js";import"./chunk-TU62E6Q5-Cj6nfmvs.js";import"./mermaid.core-BTk94fvW.js";import"./chunk-HFQBQIA3-Mc_evwtq.js";import"./chunk-M57EVK23-D76ntefR.js";import"./chunk-DQASFODM-dT6PgBil.js";import"./chunk-LEVMRMFU-Czv6v1Nf.js";import"./chunk-AXFCVDMN-te16p4Ag.js";import"./chunk-X4PVCEUW-Cr0BO581.js";import"./chunk-STOXU5M4-DFAlVrak.js";import"./chunk-R3KSYZAL-DwO3yVAQ.js";import"./chunk-6MUBBAK2-B7WjoEeV.js";import"./chunk-BG4553SI-CpqUSxKL.js";import"./d3-selection-COWvaQNI.js";import{n}from"./chunk-Y2CYZVJY-DsF7k-Jl.js";var r=t({styles:n(t=>`${e(t)}
  .swimlane.cluster:not([data-color-id]) rect {
    stroke: ${t.clusterBorder} !important;
  }
  [data-look="neo"].cluster rect {
    filter: none;
  }
`,`getStyles`)});export{r as diagram};