// The clients of a simulated cluster. Each client sends one request, and sends it again, with the
// same request id, when its router died, hangs or could not serve it. Some clients that leave ask
// for another prompt under the same id as soon as the router has aborted the first one; some that
// have their answer go on from it. Thread safety: none; the simulation's thread. Owner: the
// simulation.
#pragma once

#include <memory>
#include <string>
#include <vector>

#include "sim/checkers/stream_checker.h"
#include "sim/sim_router.h"

namespace tandem::sim {

struct ClientCounts {
  int64_t done = 0, cancelled = 0;
  int64_t ids_reused = 0;  // requests under the id of one that was cancelled or is done
  int64_t turns = 0;       // of these: they went on from an answer
  int64_t asked_again = 0;
  int64_t failed = 0;   // RequestFailed events, but for those that are counted as refused
  int64_t refused = 0;  // as late (SimRequest::refuse_late)
};

class SimClients {
 public:
  SimClients(World& world, RunLog& log) : world_(world), log_(log) {}

  // `routers` outlive the clients' last event.
  void SetRouters(std::vector<SimRouter*> routers) { routers_ = std::move(routers); }
  void Add(const SimRequest& request, const engine::HashEngineOptions& engine);

  void OnEvent(SimRouter& router, const RequestId& id, const router::ClientEvent& event);
  void OnRouterCrash(const SimRouter& router);
  // Stops waiting for routers that are silent. Called about every 100 ms.
  void Tick();

  bool AllSettled() const;
  std::vector<std::string> Unsettled() const;
  // Prompt and whole answer of each sequence and beam, those of an earlier request with this id
  // included.
  std::vector<std::vector<TokenId>> WholeSequences(const std::string& request_id) const;
  const ClientCounts& counts() const { return counts_; }
  // When each client had its whole answer, in the order of Add; 0: it had none.
  std::vector<int64_t> AnsweredUs() const {
    std::vector<int64_t> times;
    for (const auto& client : clients_) times.push_back(client->answered_us);
    return times;
  }

 private:
  struct Client {
    SimRequest request;
    router::RequestInput input;
    std::vector<StreamChecker> checkers;          // by sequence index
    std::vector<std::vector<TokenId>> sequences;  // prompts and whole answers
    // Of the request that the client gave up for the present one, or that this one goes on from.
    std::vector<std::vector<TokenId>> earlier;
    int router = 0;      // asked, or to be asked next
    uint64_t asked = 0;  // how often: tells late events from current ones
    bool asking = false;
    bool settled = false;
    const SimRouter* answered_by = nullptr;  // that settled it with its answer
    bool gives_up = false;    // its router hears so now: aborts that it tells are the client's own
    int64_t answered_us = 0;  // when it had the whole answer
    absl::Time last_news;
  };
  // Whether the client was refused as late. It has no goals any more.
  bool WasRefused(Client& client, const absl::Status& status);
  void AskLater(Client& client, absl::Duration delay, bool elsewhere);
  void Ask(Client& client);
  void Cancel(Client& client);
  // Tells the router that the client does not wait for its request any more.
  void GiveUp(SimRouter& router, Client& client);
  // The client asks for its next prompt under the same id, if it has one.
  void AskForAnother(Client& client);
  // The client of a conversation goes on from its answer.
  void GoOn(Client& client, int index);
  // `prompt`: instead of the request's.
  void Prepare(Client& client, int index, std::vector<TokenId> prompt = {});

  World& world_;
  RunLog& log_;
  std::vector<SimRouter*> routers_;
  engine::HashEngineOptions engine_;
  std::vector<std::unique_ptr<Client>> clients_;
  ClientCounts counts_;
};

}  // namespace tandem::sim
