"use strict";(self.rspackChunk_branchkit_journal_viewer=self.rspackChunk_branchkit_journal_viewer||[]).push([[700],{646(o,r,e){var t=e(601),n=e.n(t),a=e(314),i=(e.n(a))()(n());i.push([o.id,`.bk-journal { display: flex; flex-direction: column; height: 100%; min-height: 0;
  background: var(--jp-layout-color0); color: var(--jp-ui-font-color1);
  font-family: var(--jp-ui-font-family); font-size: var(--jp-ui-font-size1); }
.bk-journal-head { padding: 6px 10px; border-bottom: 1px solid var(--jp-border-color1); }
.bk-journal-head h1 { font-size: var(--jp-ui-font-size2); margin: 0 0 2px; }
.bk-journal-head p { margin: 2px 0; color: var(--jp-ui-font-color1); }
.bk-journal-damage { border-left: 4px solid var(--jp-error-color1); padding: 2px 8px; }
.bk-journal-tools button { margin: 4px 6px 2px 0; padding: 2px 10px; cursor: pointer;
  color: var(--jp-ui-font-color1); background: var(--jp-layout-color2);
  border: 1px solid var(--jp-border-color0); border-radius: 2px; font: inherit; }
.bk-journal-tools button:disabled { cursor: default; opacity: 0.6; }
.bk-journal-tools button:focus-visible, .bk-journal-list:focus-visible,
.bk-journals a:focus-visible { outline: 2px solid var(--jp-brand-color1); outline-offset: -2px; }
.bk-journal-list { flex: 1 1 60%; min-height: 120px; overflow: auto; position: relative;
  font-family: var(--jp-code-font-family); font-size: var(--jp-code-font-size); }
.bk-journal-row { position: absolute; left: 0; right: 0; height: 24px; line-height: 24px;
  display: grid; grid-template-columns: 6ch 7ch 20ch 14ch minmax(0, 1fr); column-gap: 1ch;
  padding: 0 10px; white-space: pre; overflow: hidden; cursor: pointer; }
.bk-journal-row > span { overflow: hidden; text-overflow: ellipsis; }
.bk-journal-row.bk-reply { border-top: 1px solid var(--jp-border-color2); font-weight: bold; }
.bk-journal-row[aria-selected="true"] { background: var(--jp-layout-color3);
  box-shadow: inset 3px 0 0 var(--jp-brand-color1); }
.bk-journal-row.bk-bad { box-shadow: inset 3px 0 0 var(--jp-error-color1); }
.bk-journal-row.bk-bad > span:nth-child(4) { text-decoration: underline; }
.bk-journal-detail { flex: 1 1 40%; min-height: 80px; overflow: auto; margin: 0; padding: 6px 10px;
  border-top: 1px solid var(--jp-border-color1); white-space: pre-wrap; overflow-wrap: anywhere;
  font-family: var(--jp-code-font-family); font-size: var(--jp-code-font-size);
  background: var(--jp-layout-color1); color: var(--jp-ui-font-color1); }
.bk-journals { overflow: auto; height: 100%; padding: 8px 10px; box-sizing: border-box;
  background: var(--jp-layout-color1); color: var(--jp-ui-font-color1);
  font-family: var(--jp-ui-font-family); font-size: var(--jp-ui-font-size1); }
.bk-journals h2 { font-size: var(--jp-ui-font-size1); margin: 0 0 6px; }
.bk-journals ul { list-style: none; margin: 0; padding-left: 14px; }
.bk-journals > ul { padding-left: 0; }
.bk-journals a { color: var(--jp-content-link-color); text-decoration: underline; cursor: pointer; }
.bk-journals button { margin: 0 0 8px; }
`,""]),e.d(r,{},{A:i})},314(o){o.exports=function(o){var r=[];return r.toString=function(){return this.map(function(r){var e="",t=void 0!==r[5];return r[4]&&(e+="@supports (".concat(r[4],") {")),r[2]&&(e+="@media ".concat(r[2]," {")),t&&(e+="@layer".concat(r[5].length>0?" ".concat(r[5]):""," {")),e+=o(r),t&&(e+="}"),r[2]&&(e+="}"),r[4]&&(e+="}"),e}).join("")},r.i=function(o,e,t,n,a){"string"==typeof o&&(o=[[null,o,void 0]]);var i={};if(t)for(var l=0;l<this.length;l++){var s=this[l][0];null!=s&&(i[s]=!0)}for(var c=0;c<o.length;c++){var p=[].concat(o[c]);t&&i[p[0]]||(void 0!==a&&(void 0===p[5]||(p[1]="@layer".concat(p[5].length>0?" ".concat(p[5]):""," {").concat(p[1],"}")),p[5]=a),e&&(p[2]&&(p[1]="@media ".concat(p[2]," {").concat(p[1],"}")),p[2]=e),n&&(p[4]?(p[1]="@supports (".concat(p[4],") {").concat(p[1],"}"),p[4]=n):p[4]="".concat(n)),r.push(p))}},r}},601(o){o.exports=function(o){return o[1]}},72(o){var r=[];function e(o){for(var e=-1,t=0;t<r.length;t++)if(r[t].identifier===o){e=t;break}return e}function t(o,t){for(var n={},a=[],i=0;i<o.length;i++){var l=o[i],s=t.base?l[0]+t.base:l[0],c=n[s]||0,p="".concat(s," ").concat(c);n[s]=c+1;var u=e(p),d={css:l[1],media:l[2],sourceMap:l[3],supports:l[4],layer:l[5]};if(-1!==u)r[u].references++,r[u].updater(d);else{var f=function(o,r){var e=r.domAPI(r);return e.update(o),function(r){r?(r.css!==o.css||r.media!==o.media||r.sourceMap!==o.sourceMap||r.supports!==o.supports||r.layer!==o.layer)&&e.update(o=r):e.remove()}}(d,t);t.byIndex=i,r.splice(i,0,{identifier:p,updater:f,references:1})}a.push(p)}return a}o.exports=function(o,n){var a=t(o=o||[],n=n||{});return function(o){o=o||[];for(var i=0;i<a.length;i++){var l=e(a[i]);r[l].references--}for(var s=t(o,n),c=0;c<a.length;c++){var p=e(a[c]);0===r[p].references&&(r[p].updater(),r.splice(p,1))}a=s}}},659(o){var r={};o.exports=function(o,e){var t=function(o){if(void 0===r[o]){var e=document.querySelector(o);if(window.HTMLIFrameElement&&e instanceof window.HTMLIFrameElement)try{e=e.contentDocument.head}catch(o){e=null}r[o]=e}return r[o]}(o);if(!t)throw Error("Couldn't find a style target. This probably means that the value for the 'insert' parameter is invalid.");t.appendChild(e)}},540(o){o.exports=function(o){var r=document.createElement("style");return o.setAttributes(r,o.attributes),o.insert(r,o.options),r}},56(o,r,e){o.exports=function(o){var r=e.nc;r&&o.setAttribute("nonce",r)}},825(o){o.exports=function(o){if("u"<typeof document)return{update:function(){},remove:function(){}};var r=o.insertStyleElement(o);return{update:function(e){var t,n,a;t="",e.supports&&(t+="@supports (".concat(e.supports,") {")),e.media&&(t+="@media ".concat(e.media," {")),(n=void 0!==e.layer)&&(t+="@layer".concat(e.layer.length>0?" ".concat(e.layer):""," {")),t+=e.css,n&&(t+="}"),e.media&&(t+="}"),e.supports&&(t+="}"),(a=e.sourceMap)&&"u">typeof btoa&&(t+="\n/*# sourceMappingURL=data:application/json;base64,".concat(btoa(unescape(encodeURIComponent(JSON.stringify(a))))," */")),o.styleTagTransform(t,r,o.options)},remove:function(){var o;null===(o=r).parentNode||o.parentNode.removeChild(o)}}}},113(o){o.exports=function(o,r){if(r.styleSheet)r.styleSheet.cssText=o;else{for(;r.firstChild;)r.removeChild(r.firstChild);r.appendChild(document.createTextNode(o))}}},959(o,r,e){var t=e(72),n=e.n(t),a=e(825),i=e.n(a),l=e(659),s=e.n(l),c=e(56),p=e.n(c),u=e(540),d=e.n(u),f=e(113),v=e.n(f),b=e(646),h={};h.styleTagTransform=v(),h.setAttributes=p(),h.insert=s().bind(null,"head"),h.domAPI=i(),h.insertStyleElement=d(),n()(b.A,h),b.A&&b.A.locals&&b.A.locals}}]);