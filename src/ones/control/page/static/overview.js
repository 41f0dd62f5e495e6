// The first page: GPUs, jobs, the last decisions.

import { $ } from "./dom.js";
import { Live, serverNow } from "./live.js";
import { JobTables } from "./jobtable.js";
import { decisionItem } from "./decisionlist.js";
import { showCluster } from "./cluster.js";
import { listenToFilter } from "./filter.js";

const MOST_DECISIONS = 8;
const tables = new JobTables();
let said = new Map();
listenToFilter(tables, () => tables.show(serverNow()));

new Live({
  hello: () => {
    said = new Map();
    $("decisions").replaceChildren();
  },
  jobs: (news) => {
    tables.take(news);
    tables.show(serverNow());
  },
  cluster: (cluster) => {
    showCluster(cluster);
    tables.show(serverNow());
  },
  decisions: (plans) => {
    for (const plan of plans) {
      const item = decisionItem(plan, false, said);
      if (item) $("decisions").prepend(item);
    }
    while ($("decisions").children.length > MOST_DECISIONS) $("decisions").lastElementChild.remove();
    $("decisions").nextElementSibling.hidden = $("decisions").children.length > 0;
  },
});
setInterval(() => {
  if (!document.body.classList.contains("is-away")) tables.show(serverNow());
}, 1000);
