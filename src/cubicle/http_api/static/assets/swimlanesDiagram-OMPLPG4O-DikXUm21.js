import{r as e,t}from"./chunk-QB3YPZ4I-D_OKTTG1.js";import"./chunk-TU62E6Q5-DkWHmLQY.js";import"./mermaid.core-C5gnFCGE.js";import"./chunk-HFQBQIA3-BIMLJtub.js";import"./chunk-M57EVK23-ET6lz1Hd.js";import"./chunk-DQASFODM-YM8eHd4P.js";import"./chunk-LEVMRMFU-DRXiUJzf.js";import"./chunk-AXFCVDMN-BMr9pu1d.js";import"./chunk-X4PVCEUW-BemqUD5A.js";import"./chunk-STOXU5M4-bJ9OrZgS.js";import"./chunk-R3KSYZAL-CnE1ivBQ.js";import"./chunk-6MUBBAK2-ibYEgNiN.js";import"./chunk-BG4553SI-BVQcLyuX.js";import"./d3-selection-COWvaQNI.js";import{n}from"./chunk-Y2CYZVJY-DsF7k-Jl.js";var r=t({styles:n(t=>`${e(t)}
  .swimlane.cluster:not([data-color-id]) rect {
    stroke: ${t.clusterBorder} !important;
  }
  [data-look="neo"].cluster rect {
    filter: none;
  }
`,`getStyles`)});export{r as diagram};