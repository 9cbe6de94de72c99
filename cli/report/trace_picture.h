// A finished request's timing as a waterfall: as text for a terminal and as SVG.
// Thread safety: pure functions.
#pragma once

#include <string>
#include <vector>

#include "tandem/v1/client.pb.h"

namespace tandem::cli {

// One bar of the waterfall, from the request's arrival at the router.
struct TraceStep {
  std::string name;
  double from_ms = 0;
  double ms = 0;
  std::string note;
};

// Queue, placement, prefill, transfer, insert and decode of one sequence, those that there were. A
// transfer runs beside the prefill: its bar ends where the insertion does. After several attempts
// the bars are those of the attempt that gave the first token. The route, which is the last
// attempt's, then has no bar and no note.
std::vector<TraceStep> TraceSteps(const v1::Finished& finished);

// Every sequence's bars, tokens by source, gaps between tokens, and what it lent to other nodes.
std::string FormatTrace(const v1::RequestTrace& trace);

// A whole <svg>: the bars, and a tick for every token.
std::string DrawTrace(const v1::RequestTrace& trace);

}  // namespace tandem::cli
