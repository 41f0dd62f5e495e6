// A colour for each job: hues advance by the golden angle, lightness alternates from job to job, as in the
// charts of `ones sim` (report/colours.py). All are light enough for dark text.

const LIGHTNESS = [0.79, 0.69, 0.87, 0.74];
const CHROMA = [0.105, 0.125, 0.08, 0.115];

/** The colour of a job, by the number at the end of its id. */
export function jobColour(id) {
  const n = numberOf(id);
  const level = ((n % 4) + 4) % 4;
  return `oklch(${LIGHTNESS[level]} ${CHROMA[level]} ${hue(n)})`;
}

/** The same hue for a line, dark enough for a light background. */
export function lineColour(id, isDark) {
  return `oklch(${isDark ? 0.78 : 0.55} 0.14 ${hue(numberOf(id))})`;
}

function numberOf(id) {
  const digits = /(\d+)$/.exec(id);
  return digits ? Number(digits[1].slice(-6)) - 1 : 0;
}

const hue = (n) => (250 + n * 137.50776) % 360;
