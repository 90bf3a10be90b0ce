"""Placeholder until the live display is there."""
class Progress:
    def __init__(self, total_rounds, label, main_metric, quiet=False): self.q=quiet; self.label=label
    def __enter__(self): return self
    def __exit__(self,*a): pass
    def round(self,index,phase,seconds,value,bytes_total):
        if not self.q: print(self.label, index, phase, round(seconds,2), value, bytes_total, flush=True)
    def note(self,text): print(text, flush=True)
