// A page without news of its own: only whether the controller is there.

import { Live } from "./live.js";

new Live({});
