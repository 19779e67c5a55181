// The routing kernels of engine/kernels/cuda/route.cu on a CPU, callable from Python. version: 0 two launches, 1 all in
// one, 2 logits and then the choice in one block, 3 the same in several.
#include "primitives.h"
#include "route.cu"

extern "C" void run_route(const u16* weight, const u16* x, const float* bias, int tokens, float* logits, int* ids,
                          float* weights, int* slots, int* active, int* pair_token, int* pair_place, int* finished,
                          int* ticket, int version) {
    int4* s = reinterpret_cast<int4*>(slots);
    if (version == 1) {
        emu::launch(EXPERTS / 16, 1, THREADS, 65536, EXPERTS / 16, [&] {
            route_fused(weight, x, bias, tokens, logits, ids, weights, s, active, pair_token, pair_place, finished,
                        ticket);
        });
        return;
    }
    emu::launch(EXPERTS / 16, 1, THREADS, 65536, 1, [&] { router_logits(weight, x, tokens, logits); });
    if (version >= 2) {
        emu::launch(version == 2 ? 1 : (tokens + 31) / 32, 1, THREADS, 65536, 2, [&] {
            choose_and_list(logits, bias, tokens, ids, weights, s, active, pair_token, pair_place, finished, ticket);
        });
        return;
    }
    emu::launch((tokens + 31) / 32, 1, THREADS, 65536, 2, [&] {
        route(logits, bias, tokens, ids, weights, s, active, pair_token, pair_place, finished, ticket);
    });
}
