import{r as e,t}from"./chunk-QB3YPZ4I-B_ISd1j0.js";import"./chunk-TU62E6Q5-B_pKWGs3.js";import"./mermaid.core-iGf2_EaJ.js";import"./chunk-HFQBQIA3-rTFGgEbG.js";import"./chunk-M57EVK23-DrrBuyD3.js";import"./chunk-DQASFODM-Bz3vzkuV.js";import"./chunk-LEVMRMFU-DA7Aot1c.js";import"./chunk-AXFCVDMN-CFe8yAj3.js";import"./chunk-X4PVCEUW-DMXsKLOP.js";import"./chunk-STOXU5M4-BRNniM91.js";import"./chunk-R3KSYZAL-KHAYdFSr.js";import"./chunk-6MUBBAK2-C1lcH41U.js";import"./chunk-BG4553SI-Ci-s4aWw.js";import"./d3-selection-COWvaQNI.js";import{n}from"./chunk-Y2CYZVJY-DsF7k-Jl.js";var r=t({styles:n(t=>`${e(t)}
  .swimlane.cluster:not([data-color-id]) rect {
    stroke: ${t.clusterBorder} !important;
  }
  [data-look="neo"].cluster rect {
    filter: none;
  }
`,`getStyles`)});export{r as diagram};