import{r as e,t}from"./chunk-QB3YPZ4I-BTZyssye.js";import"./chunk-TU62E6Q5-Cpofi9Ro.js";import"./mermaid.core-thJMjM0u.js";import"./chunk-HFQBQIA3-C8-JyR85.js";import"./chunk-M57EVK23-90uZw76t.js";import"./chunk-DQASFODM-BLdTdKsO.js";import"./chunk-LEVMRMFU-BZHg__EY.js";import"./chunk-AXFCVDMN-BjrW2cfD.js";import"./chunk-X4PVCEUW-DaJc3MBj.js";import"./chunk-STOXU5M4-Dcyccvz5.js";import"./chunk-R3KSYZAL-CqJ8zsPy.js";import"./chunk-6MUBBAK2-DFs_ZO00.js";import"./chunk-BG4553SI-BZaVNofk.js";import"./d3-selection-COWvaQNI.js";import{n}from"./chunk-Y2CYZVJY-DsF7k-Jl.js";var r=t({styles:n(t=>`${e(t)}
  .swimlane.cluster:not([data-color-id]) rect {
    stroke: ${t.clusterBorder} !important;
  }
  [data-look="neo"].cluster rect {
    filter: none;
  }
`,`getStyles`)});export{r as diagram};