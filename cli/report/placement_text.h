// How a router chose the nodes of a finished request, as text for a terminal.
// Thread safety: pure functions.
#pragma once

#include <string>

#include "tandem/v1/client.pb.h"

namespace tandem::cli {

// "service tier flex: first token within 2s" and a line break; empty where a trace tells no tier.
std::string FormatGoals(const v1::RequestTrace& trace);

// Its service tier, and every placement: the nodes that were weighed, best first, their scores, and
// which were chosen. And when first tokens came, beside what was predicted for them.
std::string FormatPlacements(const v1::RequestTrace& trace);

}  // namespace tandem::cli
