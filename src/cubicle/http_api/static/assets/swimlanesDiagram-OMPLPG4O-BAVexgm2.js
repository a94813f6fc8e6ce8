import{r as e,t}from"./chunk-QB3YPZ4I-B6vVy5TD.js";import"./chunk-TU62E6Q5-Bdfk4bSi.js";import"./mermaid.core-C8jFTq8e.js";import"./chunk-HFQBQIA3-DlZucvXM.js";import"./chunk-M57EVK23-DIRTWFJe.js";import"./chunk-DQASFODM-Bk0PpPpG.js";import"./chunk-LEVMRMFU-Br3y-xGo.js";import"./chunk-AXFCVDMN-DOrjWYhB.js";import"./chunk-X4PVCEUW-jKSWrlYv.js";import"./chunk-STOXU5M4-VOyOYDAO.js";import"./chunk-R3KSYZAL-Dvv-pHku.js";import"./chunk-6MUBBAK2-DM0EDmwm.js";import"./chunk-BG4553SI-nkmrKdjN.js";import"./d3-selection-COWvaQNI.js";import{n}from"./chunk-Y2CYZVJY-DsF7k-Jl.js";var r=t({styles:n(t=>`${e(t)}
  .swimlane.cluster:not([data-color-id]) rect {
    stroke: ${t.clusterBorder} !important;
  }
  [data-look="neo"].cluster rect {
    filter: none;
  }
`,`getStyles`)});export{r as diagram};