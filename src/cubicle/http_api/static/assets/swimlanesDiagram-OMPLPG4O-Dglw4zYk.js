import{r as e,t}from"./chunk-QB3YPZ4I-DpWj6u00.js";import"./chunk-TU62E6Q5-Buiy5jia.js";import"./mermaid.core-B94Ya6Lt.js";import"./chunk-HFQBQIA3-DsEdya4E.js";import"./chunk-M57EVK23-CUCBMU80.js";import"./chunk-DQASFODM-D5bpUmPI.js";import"./chunk-LEVMRMFU-COolYBlT.js";import"./chunk-AXFCVDMN-BO5d4BOr.js";import"./chunk-X4PVCEUW-CSEN4GOj.js";import"./chunk-STOXU5M4-BEJkGC4W.js";import"./chunk-R3KSYZAL-wx8oq-z2.js";import"./chunk-6MUBBAK2-Dpmwuspx.js";import"./chunk-BG4553SI-Bz36RxsT.js";import"./d3-selection-COWvaQNI.js";import{n}from"./chunk-Y2CYZVJY-DsF7k-Jl.js";var r=t({styles:n(t=>`${e(t)}
  .swimlane.cluster:not([data-color-id]) rect {
    stroke: ${t.clusterBorder} !important;
  }
  [data-look="neo"].cluster rect {
    filter: none;
  }
`,`getStyles`)});export{r as diagram};