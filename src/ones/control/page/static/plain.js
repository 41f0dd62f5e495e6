// A page without updates of its own: shows only whether the controller answers.

import { Live } from "./live.js";

new Live({});
