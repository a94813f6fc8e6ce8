/** Colours of code, dark and light in one: the frame's colour scheme chooses. */
import { HighlightStyle } from "@codemirror/language";
import { tags as t } from "@lezer/highlight";

export const colours = HighlightStyle.define([
  {
    tag: [t.keyword, t.modifier, t.operatorKeyword, t.controlKeyword],
    color: "light-dark(#8b2fa8, #d8a0ff)",
  },
  { tag: [t.string, t.special(t.string), t.regexp, t.inserted], color: "light-dark(#19713e, #7bd88f)" },
  { tag: [t.number, t.bool, t.null, t.atom], color: "light-dark(#a34700, #ffb27a)" },
  { tag: [t.comment, t.meta], color: "light-dark(#5d6472, #9aa2b1)", fontStyle: "italic" },
  {
    tag: [t.function(t.variableName), t.function(t.propertyName), t.labelName],
    color: "light-dark(#2f55c8, #8fb0ff)",
  },
  { tag: [t.typeName, t.className, t.namespace, t.tagName], color: "light-dark(#0b6b78, #6fd6e0)" },
  {
    tag: [t.propertyName, t.attributeName, t.definition(t.variableName)],
    color: "light-dark(#2f55c8, #a9c1ff)",
  },
  { tag: [t.deleted, t.invalid], color: "light-dark(#b3261e, #ff938a)" },
  { tag: t.heading, fontWeight: "bold", color: "light-dark(#2f55c8, #a9c1ff)" },
  { tag: t.link, textDecoration: "underline" },
  { tag: t.strong, fontWeight: "bold" },
  { tag: t.emphasis, fontStyle: "italic" },
]);
