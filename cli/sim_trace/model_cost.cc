#include "cli/sim_trace/model_cost.h"

#include <string>
#include <utility>
#include <vector>

#include "absl/strings/numbers.h"
#include "absl/strings/str_cat.h"
#include "absl/strings/str_split.h"
#include "common/base/status_macros.h"
#include "router/front_end/json_body.h"

namespace tandem::cli {
namespace {

// A second for one row: more is a mistake in the unit.
constexpr double kMicrosecondsMax = 1e6;

absl::StatusOr<std::vector<sim::NoiseQuantile>> QuantilesOf(const router::Json& json) {
  const auto found = json.find("gap_noise");
  if (found == json.end() || !found->is_array() || found->empty())
    return absl::InvalidArgumentError(
        "gap_noise: expected pairs of a percentage and a factor, as `tandem bench trace --json` "
        "writes them of real processes");
  if (found->size() > sim::StepNoise::kQuantilesMax)
    return absl::InvalidArgumentError(absl::StrCat(
        "gap_noise: ", found->size(), " pairs, expected at most ", sim::StepNoise::kQuantilesMax));
  std::vector<sim::NoiseQuantile> quantiles;
  for (const router::Json& pair : *found) {
    if (!pair.is_array() || pair.size() != 2 || !pair[0].is_number() || !pair[1].is_number())
      return absl::InvalidArgumentError(
          absl::StrCat("gap_noise[", quantiles.size(), "]: expected [percent, factor]"));
    quantiles.push_back({pair[0].get<double>(), pair[1].get<double>()});
  }
  return quantiles;
}

absl::StatusOr<sim::StepNoise> ParseNoise(const std::string& text) {
  ASSIGN_OR_RETURN(const router::Json json, router::ParseJsonBody(text));
  ASSIGN_OR_RETURN(std::vector<sim::NoiseQuantile> quantiles, QuantilesOf(json));
  return sim::StepNoise::Create(std::move(quantiles));
}

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

absl::StatusOr<sim::StepNoise> ReadStepNoise(const NamedFile& file) {
  ASSIGN_OR_RETURN(const std::string text, ReadInput(file, kNoiseFileBytesMax));
  absl::StatusOr<sim::StepNoise> noise = ParseNoise(text);
  if (!noise.ok())
    return absl::Status(noise.status().code(), absl::StrCat("--", file.name, "=", file.path, ": ",
                                                            noise.status().message()));
  return noise;
}

}  // namespace tandem::cli
