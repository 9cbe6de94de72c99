// The line of the access log about one request: ids, nodes, times and token counts, never text.
//   request ended request_id=r-17 front_end=http service_tier=default status=OK reason=stop
//   prompt_tokens=37 cached_tokens=0 output_tokens=8 answers=1 queue_ms=0.1 first_token_ms=41.2
//   total_ms=145.9 prefill=prefill-0 decode=decode-0 attempts=1
// Where some of the cached tokens were brought for this prompt, host_memory_tokens, disk_tokens and
// fetched_tokens say how many, of the sequence that was placed first. So are the nodes and the
// times. output_tokens are those of all answers, also of those that the client does not get
// (best_of). A request that is refused before it is read whole has no line. Thread safety: none;
// the core's strand once the session is there. Owner: the request's AnswerSession.
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

  // One of the answers that the client gets has ended.
  void OnFinished(const v1::Finished& finished);
  // One of the request's sequences has ended, whether the client gets its answer or not (best_of).
  void OnSequence(int32_t index, const v1::Route& route, const v1::Timing& timing);
  // What is known of answers that the client does not get: of a request that failed, and of
  // best_of.
  void OnUnfinished(const v1::Usage& usage) { output_tokens_ += usage.output_tokens(); }
  // Writes the line. Call it once, at the request's end.
  void Write(const absl::Status& status, absl::Duration total) const;

 private:
  const std::string request_id_, trace_id_, front_end_, service_tier_;
  const int64_t prompt_tokens_;
  int64_t cached_tokens_ = 0, output_tokens_ = 0, answers_ = 0;
  v1::FinishReason reason_ = v1::FINISH_REASON_UNSPECIFIED;  // of the last answer
  // Of the sequence that was placed first. Its index: -1 before any has ended.
  int32_t index_ = -1;
  v1::Route route_;
  double queue_ms_ = 0, first_token_ms_ = 0;
};

}  // namespace tandem::router
