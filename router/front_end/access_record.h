// The line of the access log about one request: ids, nodes, times and token counts, never text.
//   request ended request_id=r-17 front_end=http service_tier=default status=OK reason=stop
//   prompt_tokens=37 cached_tokens=0 output_tokens=8 answers=1 queue_ms=0.1 first_token_ms=41.2
//   total_ms=145.9 prefill=prefill-0 decode=decode-0 attempts=1
// Where some of the cached tokens were brought for this prompt, host_memory_tokens, disk_tokens and
// fetched_tokens say how many, of the first answer.
// A request that the router refuses before it reads the prompt has no line.
// Thread safety: none; the core's strand. Owner: the request's AnswerSession.
#pragma once

#include <string>
#include <utility>

#include "absl/status/status.h"
#include "absl/time/time.h"
#include "tandem/v1/client.pb.h"

namespace tandem::router {

class AccessRecord {
 public:
  // `request_id`: as the client knows it. `trace_id`: the client's, or empty. `front_end`: "http"
  // or "grpc".
  AccessRecord(std::string request_id, std::string trace_id, std::string front_end,
               std::string service_tier, int64_t prompt_tokens)
      : request_id_(std::move(request_id)),
        trace_id_(std::move(trace_id)),
        front_end_(std::move(front_end)),
        service_tier_(std::move(service_tier)),
        prompt_tokens_(prompt_tokens) {}

  // One of the request's answers has ended.
  void OnFinished(const v1::Finished& finished);
  // What is known of answers that did not end, of a request that failed.
  void OnUnfinished(const v1::Usage& usage) { output_tokens_ += usage.output_tokens(); }
  // Writes the line. Call it once, at the request's end.
  void Write(const absl::Status& status, absl::Duration total) const;

 private:
  const std::string request_id_, trace_id_, front_end_, service_tier_;
  const int64_t prompt_tokens_;
  int64_t cached_tokens_ = 0, output_tokens_ = 0, answers_ = 0;
  v1::FinishReason reason_ = v1::FINISH_REASON_UNSPECIFIED;  // of the last answer
  v1::Route route_;                                          // of the first answer, like the times
  double queue_ms_ = 0, first_token_ms_ = 0;
};

}  // namespace tandem::router
