// A browser that came here from another site did not send its cookie, though it may have one:
// ask again from here, and when somebody comes back after logging in beside us.

async function look() {
  try {
    if ((await fetch("/api/me")).ok) location.replace("/");
  } catch {
    // the controller is away
  }
}

look();
document.addEventListener("visibilitychange", () => document.hidden || look());
