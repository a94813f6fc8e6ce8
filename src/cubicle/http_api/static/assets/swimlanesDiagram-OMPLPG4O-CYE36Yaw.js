import{r as e,t}from"./chunk-QB3YPZ4I-BwdY1fix.js";import"./chunk-TU62E6Q5-BJBjfcmi.js";import"./mermaid.core-DEd9BopM.js";import"./chunk-HFQBQIA3-BCgEHIsi.js";import"./chunk-M57EVK23-CdeoFr2S.js";import"./chunk-DQASFODM-B1EDL3mj.js";import"./chunk-LEVMRMFU-Bs8osc40.js";import"./chunk-AXFCVDMN-C2OO6-G1.js";import"./chunk-X4PVCEUW-DOFXcq7n.js";import"./chunk-STOXU5M4-DG-YGfbO.js";import"./chunk-R3KSYZAL-BZgVDIy0.js";import"./chunk-6MUBBAK2-DkpDCuHD.js";import"./chunk-BG4553SI-D6Ise0RG.js";import"./d3-selection-COWvaQNI.js";import{n}from"./chunk-Y2CYZVJY-DsF7k-Jl.js";var r=t({styles:n(t=>`${e(t)}
  .swimlane.cluster:not([data-color-id]) rect {
    stroke: ${t.clusterBorder} !important;
  }
  [data-look="neo"].cluster rect {
    filter: none;
  }
`,`getStyles`)});export{r as diagram};