#include "cli/sim_trace/model_cost.h"

#include <utility>
#include <vector>

#include "absl/strings/numbers.h"
#include "absl/strings/str_cat.h"
#include "absl/strings/str_split.h"

namespace tandem::cli {
namespace {

// A second for one row: more is a mistake in the unit.
constexpr double kMicrosecondsMax = 1e6;

}  // namespace

absl::StatusOr<cost::StepProfile> ParseModelCost(absl::string_view text) {
  cost::StepProfile profile;
  const std::pair<absl::string_view, double*> terms[] = {
      {"step", &profile.step_us},
      {"prompt-row", &profile.prompt_row_us},
      {"prompt-attended", &profile.prompt_attended_us},
      {"generated-row", &profile.generated_row_us},
      {"generated-attended", &profile.generated_attended_us},
      {"sampled-row", &profile.sampled_row_us}};
  for (const absl::string_view part : absl::StrSplit(text, ',', absl::SkipEmpty())) {
    const std::pair<absl::string_view, absl::string_view> pair = absl::StrSplit(part, '=');
    double* term = nullptr;
    for (const auto& [name, value] : terms)
      if (name == pair.first) term = value;
    if (term == nullptr)
      return absl::InvalidArgumentError(absl::StrCat(
          "'", pair.first,
          "' is no term of the cost model, expected step, prompt-row, prompt-attended, "
          "generated-row, generated-attended or sampled-row"));
    if (!absl::SimpleAtod(pair.second, term) || !(*term >= 0 && *term <= kMicrosecondsMax))
      return absl::InvalidArgumentError(absl::StrCat(pair.first, " is '", pair.second,
                                                     "', expected microseconds from 0 to ",
                                                     kMicrosecondsMax));
  }
  if (profile.step_us <= 0 && (profile.prompt_row_us <= 0 || profile.generated_row_us <= 0))
    return absl::InvalidArgumentError(
        "steps would take no time; expected step, or both prompt-row and generated-row");
  return profile;
}

}  // namespace tandem::cli
