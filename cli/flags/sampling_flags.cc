#include "cli/flags/sampling_flags.h"

namespace tandem::cli {

void RegisterSamplingFlags(config::Schema& schema, SamplingFlags& flags) {
  schema.Add("max-tokens", &flags.max_tokens, "Longest answer; 0 = up to the model's context.",
             {.min = 0, .unit = "tokens", .group = "Sampling"});
  schema.Add("temperature", &flags.temperature, "0 = greedy.", {.min = 0.0, .group = "Sampling"});
  schema.Add("top-k", &flags.top_k, "Sample among this many likeliest tokens; 0 = all.",
             {.min = 0, .group = "Sampling"});
  schema.Add("top-p", &flags.top_p, "Sample among the likeliest tokens of this total probability.",
             {.min = 0.0, .max = 1.0, .group = "Sampling"});
  schema.Add("min-p", &flags.min_p,
             "Sample among tokens at least this likely relative to the likeliest.",
             {.min = 0.0, .max = 1.0, .group = "Sampling"});
  schema.Add("repetition-penalty", &flags.repetition_penalty, "1 = none.",
             {.min = 0.0, .group = "Sampling"});
  schema.Add("seed", &flags.seed, "Equal seeds give equal answers; -1 = the router draws one.",
             {.min = -1, .group = "Sampling"});
  schema.Add("stop", &flags.stop, "Texts that end the answer.", {.group = "Sampling"});
  schema.Add("ignore-eos", &flags.ignore_eos, "Go on after the model ends its answer.",
             {.group = "Sampling"});
}

void ApplySamplingFlags(const SamplingFlags& flags, v1::GenerateRequest& request) {
  v1::SamplingParams& sampling = *request.mutable_sampling();
  sampling.set_temperature(flags.temperature);
  sampling.set_top_k(flags.top_k);
  sampling.set_top_p(flags.top_p);
  sampling.set_min_p(flags.min_p);
  sampling.set_repetition_penalty(flags.repetition_penalty);
  if (flags.seed >= 0) sampling.set_seed(static_cast<uint64_t>(flags.seed));
  v1::StopParams& stop = *request.mutable_stop();
  if (flags.max_tokens > 0) stop.set_max_tokens(flags.max_tokens);
  for (const std::string& text : flags.stop) stop.add_stop(text);
  stop.set_ignore_eos(flags.ignore_eos);
}

}  // namespace tandem::cli
