import{r as e,t}from"./chunk-QB3YPZ4I-CxEBTjfD.js";import"./chunk-TU62E6Q5-L9UO7y46.js";import"./mermaid.core-C_-BnfLZ.js";import"./chunk-HFQBQIA3-CWfdSQy0.js";import"./chunk-M57EVK23-DQ5GRDH7.js";import"./chunk-DQASFODM-CADopNNj.js";import"./chunk-LEVMRMFU-B2ZTfel8.js";import"./chunk-AXFCVDMN-DmtpcvKS.js";import"./chunk-X4PVCEUW-C59J9wtE.js";import"./chunk-STOXU5M4-BPBx6ZBV.js";import"./chunk-R3KSYZAL-VX4kL4NQ.js";import"./chunk-6MUBBAK2-mOSudBrH.js";import"./chunk-BG4553SI-BY-WC8GS.js";import"./d3-selection-COWvaQNI.js";import{n}from"./chunk-Y2CYZVJY-DsF7k-Jl.js";var r=t({styles:n(t=>`${e(t)}
  .swimlane.cluster:not([data-color-id]) rect {
    stroke: ${t.clusterBorder} !important;
  }
  [data-look="neo"].cluster rect {
    filter: none;
  }
`,`getStyles`)});export{r as diagram};