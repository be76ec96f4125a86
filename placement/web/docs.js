"use strict";
// Renders /openapi.json without a library: the usual viewers load scripts from elsewhere, and this service has no elsewhere.

function element(tag, text, className) {
  const node = document.createElement(tag);
  if (text !== undefined && text !== null) node.textContent = String(text);
  if (className) node.className = className;
  return node;
}

const nameOf = (ref) => ref.split("/").pop();

function link(name) {
  const node = element("a", name);
  node.href = `#schema-${name}`;
  return node;
}

function kind(schema) {
  if (!schema) return document.createTextNode("anything");
  if (schema.$ref) return link(nameOf(schema.$ref));
  const parts = element("span");
  const join = (list, text) => list.forEach((entry, index) => {
    if (index) parts.append(text);
    parts.append(kind(entry));
  });
  if (schema.anyOf) join(schema.anyOf, " or ");
  else if (schema.enum) parts.append(schema.enum.map((value) => JSON.stringify(value)).join(" | "));
  else if (schema.prefixItems) { parts.append("("); join(schema.prefixItems, ", "); parts.append(")"); }
  else if (schema.type === "array") { parts.append("list of "); parts.append(kind(schema.items)); }
  else if (schema.type === "object" && schema.additionalProperties) { parts.append("name → "); parts.append(kind(schema.additionalProperties)); }
  else parts.append(schema.format ?? schema.type ?? "anything");
  const limits = ["minimum", "maximum", "exclusiveMinimum", "minLength", "maxLength", "minItems", "maxItems"]
    .filter((name) => schema[name] !== undefined).map((name) => `${name} ${schema[name]}`);
  if (limits.length) parts.append(element("small", ` (${limits.join(", ")})`, "soft"));
  return parts;
}

function content(holder) {
  const [type, body] = Object.entries(holder?.content ?? {})[0] ?? [];
  const node = element("dd");
  if (!type) return element("dd", holder?.description ?? "");
  node.append(kind(body.schema), element("small", ` ${type}`, "soft"));
  return node;
}

function route(path, method, operation) {
  const box = element("section", null, "card");
  const title = element("h3");
  title.append(element("span", method.toUpperCase(), "method good"), element("code", path));
  box.append(title, element("div", operation.summary));
  for (const paragraph of (operation.description ?? "").split("\n\n")) box.append(element("p", paragraph, "soft"));
  const list = element("dl");
  if (operation.security) list.append(element("dt", "needs"), element("dd", "Authorization: Bearer <push token>"));
  for (const parameter of operation.parameters ?? []) {
    const text = [parameter.required ? "required" : "optional", parameter.description].filter(Boolean).join("; ");
    list.append(element("dt", `${parameter.name} (${parameter.in})`), element("dd", text));
  }
  if (operation.requestBody) list.append(element("dt", "body"), content(operation.requestBody));
  const refusals = [];
  for (const [status, answer] of Object.entries(operation.responses ?? {})) {
    if (status === "200") list.append(element("dt", status), content(answer));
    else refusals.push([status, answer]);
  }
  if (refusals.length) list.append(element("dt", refusals.map(([status]) => status).sort().join(", ")), content(refusals[0][1]));
  box.append(list);
  return box;
}

function schema(name, document_) {
  const box = element("section", null, "card");
  box.id = `schema-${name}`;
  box.append(element("h3", name));
  if (document_.description) box.append(element("p", document_.description, "soft"));
  const list = element("dl");
  for (const [field, entry] of Object.entries(document_.properties ?? {})) {
    const value = element("dd");
    value.append(kind(entry));
    if ((document_.required ?? []).includes(field)) value.append(element("small", " required", "soft"));
    list.append(element("dt", field), value);
  }
  if (!document_.properties) { list.append(element("dt", "value"), element("dd")); list.lastChild.append(kind(document_)); }
  box.append(list);
  return box;
}

fetch("/openapi.json").then((answer) => answer.json()).then((api) => {
  document.getElementById("version").textContent = `${api.info.title} ${api.info.version}`;
  for (const [path, methods] of Object.entries(api.paths)) {
    for (const [method, operation] of Object.entries(methods)) document.getElementById("routes").append(route(path, method, operation));
  }
  for (const [name, entry] of Object.entries(api.components.schemas)) document.getElementById("schemas").append(schema(name, entry));
});
