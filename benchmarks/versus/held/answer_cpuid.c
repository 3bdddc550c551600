// Makes libraries believe that the CPU has AVX2 at most: preloaded into a peer whose libraries were made by hold.py.
//
// There the first byte of each CPUID instruction (0f a2) is 06, which no 64-bit program can execute. The signal that
// it raises is answered here: as CPUID would, without the bits of AVX-512, AVX-VNNI, AMX and AVX10.
#define _GNU_SOURCE
#include <cpuid.h>
#include <dlfcn.h>
#include <signal.h>
#include <stdint.h>
#include <ucontext.h>

typedef int (*set_action)(int, const struct sigaction *, struct sigaction *);

static set_action real_sigaction(void) { return (set_action)dlsym(RTLD_NEXT, "sigaction"); }

static uint32_t without(uint32_t value, const int *bits) {
    for (; *bits >= 0; ++bits)
        value &= ~(1u << *bits);
    return value;
}

// Bits of leaf 7, as the manuals of AMD and Intel number them.
static void hold_to_avx2(uint32_t leaf, uint32_t subleaf, uint32_t answer[4]) {
    static const int ebx_7_0[] = {16, 17, 21, 26, 27, 28, 30, 31, -1}; // AVX-512 F DQ IFMA PF ER CD BW VL
    static const int ecx_7_0[] = {1, 6, 11, 12, 14, -1};               // AVX-512 VBMI VBMI2 VNNI BITALG VPOPCNTDQ
    static const int edx_7_0[] = {2, 3, 8, 22, 23, 24, 25, -1};        // AVX-512 4VNNIW 4FMAPS VP2INTERSECT FP16; AMX
    static const int eax_7_1[] = {4, 5, 21, 23, -1};                   // AVX-VNNI, AVX-512 BF16, AMX FP16, AVX-IFMA
    static const int edx_7_1[] = {4, 5, 8, 10, 19, -1};                // AVX-VNNI-INT8 and 16, NE-CONVERT, AMX, AVX10
    static const int eax_13_0[] = {5, 6, 7, 17, 18, -1};               // registers of AVX-512 and AMX
    if (leaf == 7 && subleaf == 0) {
        answer[1] = without(answer[1], ebx_7_0);
        answer[2] = without(answer[2], ecx_7_0);
        answer[3] = without(answer[3], edx_7_0);
    } else if (leaf == 7 && subleaf == 1) {
        answer[0] = without(answer[0], eax_7_1);
        answer[3] = without(answer[3], edx_7_1);
    } else if (leaf == 13 && subleaf == 0) {
        answer[0] = without(answer[0], eax_13_0);
    } else if (leaf == 0x1d || leaf == 0x1e || leaf == 0x24) { // AMX, AVX10
        answer[0] = answer[1] = answer[2] = answer[3] = 0;
    }
}

static void on_illegal(int number, siginfo_t *info, void *context) {
    (void)info;
    greg_t *registers = ((ucontext_t *)context)->uc_mcontext.gregs;
    const uint8_t *code = (const uint8_t *)registers[REG_RIP];
    if (code[0] != 0x06 || code[1] != 0xa2) { // of its own making: let it die of it
        struct sigaction usual = {.sa_handler = SIG_DFL};
        real_sigaction()(number, &usual, 0);
        return;
    }
    uint32_t leaf = (uint32_t)registers[REG_RAX], subleaf = (uint32_t)registers[REG_RCX], answer[4];
    __cpuid_count(leaf, subleaf, answer[0], answer[1], answer[2], answer[3]);
    hold_to_avx2(leaf, subleaf, answer);
    registers[REG_RAX] = answer[0];
    registers[REG_RBX] = answer[1];
    registers[REG_RCX] = answer[2];
    registers[REG_RDX] = answer[3];
    registers[REG_RIP] += 2;
}

__attribute__((constructor)) static void install(void) {
    struct sigaction ours = {.sa_sigaction = on_illegal, .sa_flags = SA_SIGINFO | SA_NODEFER};
    real_sigaction()(SIGILL, &ours, 0);
}

// Python's faulthandler and others would take the signal away.
int sigaction(int number, const struct sigaction *action, struct sigaction *old) {
    return real_sigaction()(number, number == SIGILL ? 0 : action, old);
}
