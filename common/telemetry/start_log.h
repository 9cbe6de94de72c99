// Lines about how a process starts: its configuration, its model, its memory. They are at level
// info, and left out where starts are brief.
// Thread safety: as log.h's. Owner: none, it concerns the process.
#pragma once

#include <initializer_list>

#include "absl/strings/string_view.h"
#include "common/telemetry/log.h"

namespace tandem {

void LogStart(absl::string_view message, std::initializer_list<LogField> fields = {});
// Whether starts are brief (default: no). Call it once, before threads start.
void SetBriefStart(bool brief);

}  // namespace tandem
