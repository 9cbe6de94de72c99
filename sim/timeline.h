// The timeline of one simulated run, as text and as a picture. Thread safety: pure functions.
#pragma once

#include <string>

#include "sim/simulation.h"
#include "sim/world/schedule.h"

namespace tandem::sim {

// The schedule, then one line for each event, then the violations.
std::string TimelineText(const Schedule& schedule, const SimReport& report);
// An SVG document with one row for each process and one for the clients; tooltips hold the events.
std::string TimelineSvg(const Schedule& schedule, const SimReport& report);

}  // namespace tandem::sim
